package main

import (
	"io"
	"os"

	"github.com/go-logr/zapr"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"golang.org/x/term"
	"k8s.io/klog/v2"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/appbridge/appbridge/cmd/appbridge/config"
)

func resolveLogFormat(format string, w io.Writer) string {
	if format != config.LogFormatAuto {
		return format
	}
	if isTerminal(w) {
		return config.LogFormatConsole
	}
	return config.LogFormatJSON
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	conn, err := f.SyscallConn() // File.Fd would end the deadlines of a file
	if err != nil {
		return false
	}
	is := false
	err = conn.Control(func(fd uintptr) { is = term.IsTerminal(int(fd)) })
	return err == nil && is
}

// newLogger logs to w from level (a word of --log-level) on.
func newLogger(level, format string, w io.Writer) (*zap.Logger, error) {
	least, err := zapcore.ParseLevel(level)
	if err != nil {
		return nil, err
	}
	fields := zap.NewProductionEncoderConfig()
	fields.TimeKey = "time"
	fields.EncodeTime = zapcore.RFC3339NanoTimeEncoder
	fields.EncodeDuration = zapcore.StringDurationEncoder
	encoder := zapcore.NewJSONEncoder
	if format == config.LogFormatConsole {
		fields.EncodeTime = zapcore.TimeEncoderOfLayout("15:04:05.000")
		fields.EncodeLevel = zapcore.CapitalLevelEncoder
		fields.ConsoleSeparator = "  "
		encoder = zapcore.NewConsoleEncoder
	}
	return zap.New(zapcore.NewCore(encoder(fields), zapcore.Lock(zapcore.AddSync(w)), least)), nil
}

// routeLibraryLogs sends what the Kubernetes libraries log to log. They keep
// their logger in a variable of their own, so this is for the process, once.
func routeLibraryLogs(log *zap.Logger) {
	ctrllog.SetLogger(zapr.NewLogger(log.Named("controller-runtime")))
	klog.SetLogger(zapr.NewLogger(log.Named("client-go")))
}
