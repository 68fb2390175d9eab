package subjects

// Headers that make an event a CloudEvent: version 1.0, NATS binding, binary
// mode. NATS compares header names byte by byte, so their lower case matters.
const (
	// CESpecVersion holds SpecVersion.
	CESpecVersion = "ce-specversion"
	// CEID holds the same text as Nats-Msg-Id.
	CEID = "ce-id"
	// CESource holds Source of the cluster.
	CESource = "ce-source"
	// CEType holds EventKind.Type.
	CEType = "ce-type"
	// CESubject holds AppID.Key.
	CESubject = "ce-subject"
	// CETime holds the newest time that the object itself carries, RFC 3339 in
	// UTC.
	CETime = "ce-time"
	// CEDataContentType holds ContentTypeJSON or ContentTypeProtobuf.
	CEDataContentType = "ce-datacontenttype"
)

const (
	// SpecVersion is the version of CloudEvents.
	SpecVersion = "1.0"
	// ContentTypeJSON is a payload in the JSON form of protobuf.
	ContentTypeJSON = "application/json"
	// ContentTypeProtobuf is a payload in binary protobuf.
	ContentTypeProtobuf = "application/protobuf"
)

// Source is the CloudEvents source of all events of a cluster,
// "/appbridge/<cluster-name>". Bytes of the name that a URI does not take
// unreserved are percent-encoded, so the result is a legal URI-reference for
// every name, and two names never share one.
func Source(clusterName string) string {
	return "/appbridge/" + escape(clusterName, '%', isUnreserved)
}

// isUnreserved reports whether c is one of the unreserved characters of RFC
// 3986.
func isUnreserved(c byte) bool { return isWord(c) || c == '.' || c == '~' }
