package subjects

// Reason is one word for what keeps pods of an app from serving: the value of HeaderReason, and the
// substate in the App's condition of type Ready. A reader accepts words that it does not know.
type Reason string

// The reasons, the most severe first: of several pods, the most severe one counts. The last two are
// steps of a start, and count only while no pod of that Revision is ready.
const (
	ReasonOOMKilled        Reason = "OOM_KILLED"         // a container was killed for its memory
	ReasonCrashLoop        Reason = "CRASH_LOOP"         // a container ends again and again
	ReasonSecretMountError Reason = "SECRET_MOUNT_ERROR" // a container refers to a Secret that is missing
	ReasonImagePullError   Reason = "IMAGE_PULL_ERROR"   // an image cannot be pulled
	ReasonPullingImage     Reason = "PULLING_IMAGE"      // the images are being pulled
	ReasonInitializing     Reason = "INITIALIZING"       // the pod starts in another way
)

// IsFailure reports whether a reason is a failure, not a step of a start. A word that is not known
// is taken for a failure.
func (r Reason) IsFailure() bool {
	return r != "" && r != ReasonPullingImage && r != ReasonInitializing
}
