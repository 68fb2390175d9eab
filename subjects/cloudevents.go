package subjects

// Headers that make an event a CloudEvent: version 1.0, NATS binding, binary
// mode. NATS compares header names byte by byte, so their lower case matters.
const (
	CESpecVersion = "ce-specversion" // SpecVersion
	CEID          = "ce-id"          // the same text as Nats-Msg-Id
	CESource      = "ce-source"      // Source of the cluster
	CEType        = "ce-type"        // EventKind.Type
	CESubject     = "ce-subject"     // AppID.Key
	// CETime holds the newest time that the object itself carries, RFC 3339 in UTC.
	CETime            = "ce-time"
	CEDataContentType = "ce-datacontenttype" // ContentTypeJSON or ContentTypeProtobuf
)

// The version of CloudEvents, and the encodings of a payload.
const (
	SpecVersion         = "1.0"                  // the version of CloudEvents
	ContentTypeJSON     = "application/json"     // a payload in the JSON form of protobuf
	ContentTypeProtobuf = "application/protobuf" // a payload in binary protobuf
)

// Source is the CloudEvents source of all events of a cluster, "/appbridge/<cluster-name>". Bytes
// of the name that a URI does not take unreserved are percent-encoded, so the result is a legal
// URI-reference for every name, and two names never share one.
func Source(clusterName string) string {
	return "/appbridge/" + escape(clusterName, '%', isUnreserved)
}

// isUnreserved reports whether c is one of the unreserved characters of RFC 3986.
func isUnreserved(c byte) bool { return isWord(c) || c == '.' || c == '~' }
