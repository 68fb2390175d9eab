// Command protoc-gen-contract is a plugin of buf: it writes the JSON Schema of the files that it is
// given.
package main

import (
	"google.golang.org/protobuf/compiler/protogen"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/appbridge/appbridge/testdata/contract"
)

func main() {
	protogen.Options{}.Run(func(p *protogen.Plugin) error {
		var files []protoreflect.FileDescriptor
		for _, f := range p.Files {
			if f.Generate {
				files = append(files, f.Desc)
			}
		}
		schema, err := contract.Schema(files)
		if err != nil {
			return err
		}
		_, err = p.NewGeneratedFile(contract.File, "").Write(schema)
		return err
	})
}
