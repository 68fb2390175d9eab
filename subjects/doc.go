// Package subjects is the wire contract of appbridge: it builds and parses every subject, key,
// header value, message id and error code of appbridge. Consumers in any language may rely on
// everything below. The package uses the standard library only.
//
//	AppID ──► Subjects ──► subjects of events, logs and app operations ──► AppID
//	      ──► Key ──► subject of a bucket entry ──► AppID
//	values of headers ──► Format…, String ──► text ──► Parse… ──► values
//
// # Identity
//
// An app is known by project, domain and name. Each of the three becomes one subject token and one
// part of a key. Bytes of [A-Za-z0-9_-] stand for themselves; every other byte, the equals sign
// too, is written =XX with two upper-case hex digits:
//
//	shop            shop
//	v1.2            v1=2E2
//	a=b             a=3Db
//	café            caf=C3=A9
//	*               =2A
//
// There is one form for each text, so that no two apps share a token, and nothing that a user types
// reaches a subject as a dot, a wildcard, a space or a control byte. Every other form is malformed.
// No part may be empty. The three tokens with their dots are at most 2048 bytes ([MaxKeyBytes]); an
// app beyond that has no subject and no key. The organization is not part of the identity: it is in
// the message. See [EscapeToken] and [AppID].
//
// # Names
//
// By default the prefix is flyte.apps, the stream FLYTE_APPS and the bucket flyte-apps. A prefix is
// made of tokens of [A-Za-z0-9_-] joined by dots; stream and bucket are one such token each.
// Metadata of stream and bucket:
//
//	appbridge-cluster-uid     6f1c0d9e-6f57-4a53-9d5c-0f3f8c1f2a77
//	appbridge-cluster-name    production
//	appbridge-stream          FLYTE_APPS
//	appbridge-stream-id       pX2mVQkQGm3rXo0dJq8b1w
//	appbridge-reset-sequence  1047
//	appbridge-first-sequence  5121
//	appbridge-shape           base-domain=apps.example.com;encoding=json;ingress-port=0;pod-conditions=false;scheme=https
//	appbridge-shape-of        V5QX3KD2YTMHR6WJ4NEBZ7GLCA
//
// Both name the cluster whose history they hold. appbridge-stream, on the bucket alone, names the
// stream that it reflects.
//
// Both carry the identity of the stream, a random text that is set when they are made or first
// marked. A stream that replaces a missing one, or is restored from a backup, keeps it. Stream and
// bucket with different identities do not belong together; one without it, from an older version of
// appbridge, fits any.
//
// appbridge-reset-sequence is on both once an operator has accepted that the cluster's history was
// reset (etcd restored from a backup): events up to it belong to the history that is over.
//
// appbridge-first-sequence is on a stream that was made in place of a missing one, also on the
// bucket's: no message has a lower sequence.
//
// The stream alone has the options of the bridge that began to lead last, as far as they decide how
// an App looks: names of options in order, with URL-encoded values. appbridge-shape-of is a random
// text, another one for each claim to the shape; a bridge that runs already answers the claim of
// another with the same shape by that text, a dash and a random text. A bridge that finds a shape other than its
// own, written after it began to lead, stops publishing. Older versions of appbridge write neither.
//
// # Subjects
//
// For the default prefix and the app shop/production/checkout:
//
//	events             flyte.apps.events.shop.production.checkout.created
//	                   flyte.apps.events.shop.production.checkout.updated
//	                   flyte.apps.events.shop.production.checkout.deleted
//	  of one app       flyte.apps.events.shop.production.checkout.*
//	  of all apps      flyte.apps.events.>
//	of the stream      flyte.apps.events.lost
//	                   flyte.apps.events.notice
//	log requests       flyte.apps.logs.get.shop.production.checkout
//	                   flyte.apps.logs.tail.shop.production.checkout
//	                   flyte.apps.logs.open.shop.production.checkout
//	  opened stream    flyte.apps.logs.out.shop.Vq2dG0
//	  its end          flyte.apps.logs.stop.shop.Vq2dG0
//	  its message 7    flyte.apps.logs.ack.shop.Vq2dG0.7
//	app operations     flyte.apps.api.get.shop.production.checkout
//	                   flyte.apps.api.replicas.shop.production.checkout
//	                   flyte.apps.api.ingress.shop.production.checkout
//	                   flyte.apps.api.deploy.shop.production.checkout
//	                   flyte.apps.api.stop.shop.production.checkout
//	                   flyte.apps.api.delete.shop.production.checkout
//	                   flyte.apps.api.delete-replica.shop.production.checkout
//	  list             flyte.apps.api.list
//	                   flyte.apps.api.list.shop
//	                   flyte.apps.api.list.shop.production
//
// The permissions of a NATS user are enough to isolate a tenant: flyte.apps.events.shop.> and
// flyte.apps.logs.*.shop.> are all that concerns the project shop, and flyte.apps.api.*.shop.> with
// flyte.apps.api.list.shop all that may be done to it.
//
// # Bucket
//
// The bucket holds the current state of every app. An entry is published directly to the subject
// behind its key, because a KV client sets no headers.
//
//	key                shop.production.checkout
//	stream             KV_flyte-apps
//	entry              $KV.flyte-apps.shop.production.checkout
//	all entries        $KV.flyte-apps.>
//
// Servers do not pass an entry from one JetStream domain to another. A writer that is connected to
// another domain publishes it below the API of the bucket's domain, here hub. The bucket stores it
// under the subject above.
//
//	entry in hub       $JS.hub.API.$KV.flyte-apps.shop.production.checkout
//
// An app that is gone leaves a marker: an entry with the header KV-Operation, whose value is DEL or
// PURGE. An entry without that header is a value.
//
// Markers stay for ever unless appbridge runs with --marker-max-age. Then it removes older ones,
// but never the bucket's newest message and never the one that has the highest
// Flyte-Event-Sequence, so that the position of the bucket (below) stays exact. A reader that keeps
// a copy and reads the bucket again drops every app that has neither an entry nor a marker.
//
// # Payloads
//
// An event carries a WatchResponse, a bucket entry an App. Both are messages of package appv1 and
// compatible on the wire with those of Flyte. They are protobuf JSON (application/json) or, if so
// configured, binary protobuf (application/protobuf); ce-datacontenttype names the form.
//
// ce-dataschema names the definition of both messages in both forms: the protobuf package
// appbridge.v1. The name stays while readers of older messages can read newer ones: a new field, a
// new value of an enumeration. An incompatible change makes another name. It is the same on every
// event and entry, so it selects no message: that is the WatchResponse of an event, the App of an
// entry. It is an identifier, and nothing is served under it; the JSON Schema that has it as its id
// is docs/schema/appbridge.v1.json. Messages of an older version of appbridge do not have it, and
// keep their meaning.
//
// # Message id
//
// An event is identified by the uid of the Knative Service, the resourceVersion that was observed,
// and the stream sequence of the same app's previous event, 0 on the first:
//
//	3e0f8a52-58a4-44c6-a1b7-2a9c4f1d6b90/48213/17
//
// A retry keeps the id; the same state at another place in the app's history has another one. See
// [MessageID].
//
// # Headers of an event
//
//	Nats-Msg-Id                       3e0f8a52-58a4-44c6-a1b7-2a9c4f1d6b90/48213/17
//	ce-specversion                    1.0
//	ce-id                             3e0f8a52-58a4-44c6-a1b7-2a9c4f1d6b90/48213/17
//	ce-source                         /appbridge/production
//	ce-type                           org.flyte.app.updated.v1
//	ce-subject                        shop.production.checkout
//	ce-time                           2026-11-21T08:51:07Z
//	ce-datacontenttype                application/json
//	ce-dataschema                     https://github.com/appbridge/appbridge/schema/appbridge.v1
//	Flyte-Uid                         3e0f8a52-58a4-44c6-a1b7-2a9c4f1d6b90
//	Flyte-Resource-Version            48213
//	Flyte-Generation                  3
//	Flyte-Namespace                   flyte
//	Flyte-Status                      ACTIVE
//	Flyte-Previous-Status             PENDING
//	Flyte-Revision                    checkout-shop-production-00003
//	Flyte-Revision-Resource-Version   48209
//	Flyte-Reason                      CRASH_LOOP
//	Flyte-Reason-Revision             checkout-shop-production-00004
//	Flyte-Deleted-Resource-Version    48377
//	Flyte-Truncated                   old_app,spec
//	Flyte-Previous-Sequence           17
//	Flyte-Merged-Updates              4
//	Flyte-Synthesized                 true
//	Flyte-Final-State-Unknown         true
//
// The ce- headers make it a CloudEvent 1.0 in the binary mode of the NATS binding. ce-time is the
// last time in the object itself, never that of a clock. On a delete, uid, version and generation
// are those of the previous event. Present only when they apply are: Flyte-Revision and its version
// (the Revision that current_replicas was read from), Flyte-Deleted-Resource-Version (an observed
// delete), Flyte-Truncated (fields dropped to fit the server's limit, in that order: old_app, spec,
// and on a delete also status), Flyte-Previous-Sequence (not on the first event),
// Flyte-Merged-Updates (how many updates in between this one stands for), Flyte-Synthesized (a
// change found by a resync) and Flyte-Final-State-Unknown (the last state before the delete was not
// observed).
//
// Flyte-Status is one word for the state after the event: STOPPED for a stopped app, else the
// status of the condition of type Ready: ACTIVE, PENDING or FAILED. Flyte-Previous-Status is the
// Flyte-Status of the same app's previous event, so that a consumer of headers alone can react to a
// transition. A create has only the first, a delete only the second. Flyte-Status is also absent
// while the Service has no condition of type Ready, and on events of an older version of appbridge.
// A reader accepts words that it does not know.
//
// # Reason
//
// With --pod-conditions, an App says what keeps its pods from serving: the substate of its condition
// of type Ready. Flyte-Reason is that substate, Flyte-Reason-Revision the Revision whose pods have it.
// The words, the most severe first:
//
//	OOM_KILLED           a container was killed because it used too much memory
//	CRASH_LOOP           a container ends again and again, or cannot be started
//	SECRET_MOUNT_ERROR   a container refers to a Secret, or a key of one, that is missing
//	IMAGE_PULL_ERROR     an image cannot be pulled
//	PULLING_IMAGE        the images are being pulled
//	INITIALIZING         the pod starts in another way, or lost its readiness
//
// The pods of two Revisions count: of the latest created and the latest ready one. Flyte-Revision
// names the latter. So a reason with the same Revision concerns pods that serve; with another one, a
// rollout that is under way or has failed while the Revision before it serves. Of several pods the
// most severe reason counts. The last two words are steps of a start: they count only while no pod of
// their Revision is ready. Both headers are absent if no pod has a reason, on a delete, for a stopped
// app and for a Service without a condition of type Ready.
//
// A change of the reason is an event, a restart of a container is not: a container that crashed
// counts as crashing until it has run for ten minutes.
//
// A bucket entry or marker repeats the Flyte- and ce- headers of its event, and adds its sequence:
//
//	Flyte-Event-Sequence              18
//	KV-Operation                      DEL
//
// Entries are written in stream order. A consumer that has read the bucket up to S, the highest
// such sequence over entries and markers, goes on with the stream at S+1 and has neither a gap nor
// a repeat. An entry that the server refuses for its size is truncated: Flyte-Truncated then names
// more than on the event.
//
// Appends are fenced by headers that the JetStream server checks before it stores anything:
//
//	Nats-Expected-Stream                          FLYTE_APPS
//	Nats-Expected-Last-Sequence                   52
//	Nats-Expected-Last-Subject-Sequence           17
//	Nats-Expected-Last-Subject-Sequence-Subject   flyte.apps.events.shop.production.checkout.*
//
// Nats-Expected-Last-Sequence is the sequence of the stream's last message: all appends are one
// chain, and a stream that ends before what was acknowledged refuses the next one. The other two
// are the sequence of the app's previous event and the filter of that app; a message that belongs
// to no app has neither. Every write of the bucket carries Nats-Expected-Last-Sequence as well, for
// the bucket's stream. The fences stay on the stored messages. They mean nothing to a reader.
//
// To a consumer of headers alone, the server delivers no bodies and adds their size in bytes:
//
//	Nats-Msg-Size   2913
//
// A stream that has the event stream as a source gives messages sequences of its own. The server
// adds a header whose first two words are the stream of origin and the sequence there:
//
//	Nats-Stream-Source   FLYTE_APPS 18 flyte.apps.events.> east.apps.events.>
//
// # Messages of the stream itself
//
// Messages that belong to no app have one token where an event has four, so that a filter for a
// project, a domain or an app never matches them: not even flyte.apps.events.lost.> of a project
// that is called lost. They have no body and none of the headers of an event. A reader of
// flyte.apps.events.> skips subjects that it does not know.
//
// A stream can come back with less than it acknowledged: power loss of a single server, a volume
// rolled back, a restore of an older backup. appbridge then never gives a lost sequence to another
// event. It fills the lost sequences, and appends one notice behind them:
//
//	flyte.apps.events.lost      a filler
//	flyte.apps.events.notice    a notice of loss
//
// Fillers are purged, the newest once there is a notice, and a reader skips one. A gap in the
// sequences is no loss, since retention and purges make gaps too. A notice, and each filler in front
// of it, names the first and the last lost sequence:
//
//	Flyte-Lost-From   1040
//	Flyte-Lost-To     1047
//
// Events with these sequences were acknowledged, and a reader may have received them. They are no
// longer part of the history. A reader of a notice
//
//   - keeps reading: its position is right, and every later event has a higher sequence;
//   - expects events that contradict what it received with a sequence in the range. An app whose last
//     event lies in the range is published again, compared with its last event that is left. Such
//     an event is synthesized, refers to the event that is left (Flyte-Previous-Sequence), may have
//     another kind than the lost one, and may repeat the id of a lost one: a reader that drops known
//     ids forgets those of the range;
//   - reads the bucket again if it keeps the state of apps: an app that existed only inside the
//     range has no event, and the bucket does not have it. An entry or a marker with a
//     Flyte-Event-Sequence in the range is about to be replaced: the reader reads again until there
//     is none, or the stream has the event of each.
//
// A reader with the filter of a project receives no notice, unless it adds flyte.apps.events.notice
// as a second filter. A reader that was not there finds the notices in the stream. Older
// versions of appbridge also named the newest ranges, and the one of which there was no notice yet,
// in the metadata appbridge-lost-ranges and appbridge-lost-pending of the stream. See [ParseNotice],
// [ParseLostRanges] and [ParseLostRange].
//
// # Errors
//
// The answer to a refused request has the headers of every NATS micro service and a readable body:
//
//	Nats-Service-Error        no app shop/production/checkout
//	Nats-Service-Error-Code   404
//
// The codes are
//
//	400   InvalidArgument      the request can never succeed
//	403   PermissionDenied     writes are turned off, or a deploy reaches beyond its app
//	404   NotFound             no such app, replica or container
//	409   FailedPrecondition   not in the app's present state
//	429   ResourceExhausted    a limit of the service is reached
//	500   Internal             a fault of the service
//	502   Unavailable          Kubernetes did not answer, or the service is shutting down
//	504   DeadlineExceeded     it took too long
//
// # App operations
//
// The body is a message of package appv1, the one of Flyte, or empty where the subject is enough.
// An app in the body must be that of the subject. The header Content-Type is the form of the
// request and of its answer: application/json (the default) or application/protobuf.
//
//	get              GetRequest or nothing           GetResponse
//	list             ListRequest or nothing          ListResponse
//	replicas         GetRequest or nothing           ReplicaList
//	ingress          GetRequest or nothing           Ingress
//	deploy           CreateRequest                   CreateResponse
//	stop             UpdateRequest or nothing        UpdateResponse
//	delete           DeleteRequest or nothing        DeleteResponse
//	delete-replica   ReplicaIdentifier               DeleteResponse
//
// The answer to get, deploy and stop has the headers that name a version, as an event has them
// (Flyte-Uid, Flyte-Resource-Version, Flyte-Generation, Flyte-Namespace). The event of a deploy or
// a stop has that Flyte-Resource-Version or, when the app has changed again in the meantime, a
// higher one; that of a delete has the same Flyte-Uid. The last four operations report their
// outcome; after unchanged and missing no event follows:
//
//	Flyte-Outcome    created | updated | unchanged | stopped | deleted | missing
//
// The answer to list has no position in the stream: a reader that needs a snapshot and then every
// change reads the bucket. Flyte-Truncated names fields that did not fit into a message.
//
// # Log streams
//
// A request for logs has no body, or a JSON object with options (docs/logs.md lists them). Its
// reply subject has to be an inbox. get is answered with one message, open with the subject on
// which a stream will arrive, tail with the stream itself. Each message of a stream names the
// stream, its own place in it and, when it holds lines, the replica they are of:
//
//	Flyte-Log-Stream     Vq2dG0
//	Flyte-Log-Seq        7
//	Flyte-Log-Replica    checkout-shop-production-00003-deployment-7c9d-x2x4z
//
// On request a message also names the place in the replica's log where its lines end, and a message
// without lines does where there are none to send. The value is opaque, printable ASCII of at most 128
// bytes; a later request goes on behind it, with the option resume:
//
//	Flyte-Log-Position   W4soKEBTEpo.7LYZiJqwtyaCFjtm27tv-YIWO2bbu2_5ghY7Ztu7b_mCFjtm27tv-RicqwoRCaRAAAAAAAAAAAUC.12
//
// The formats of the lines are text, raw, and Flyte's TailLogsResponse as json or proto.
//
// What is not lines of the log is a note, and in the formats for people begins with
//
//	# appbridge:
//
// and a space. The first message is a note with the replicas, and so is every change of them. Only a
// note that the stream waits for Kubernetes may come before it. Other notes report that there is
// nothing to read for now, an event of a replica, or missing lines:
//
//	Flyte-Log-Note       replicas | waiting | replica | dropped
//	Flyte-Log-Replicas   checkout-shop-production-00003-deployment-7c9d-x2x4z
//	Flyte-Log-Dropped    120
//	Flyte-Log-Limit      10m0s
//
// Flyte-Log-Limit is on the first note with the replicas of a stream to another account, where the
// service cannot detect a missing subscriber: the maximum duration of the stream.
//
// Every message but an error and the last has a reply subject, unless it goes to another account. A
// reader with a window acknowledges each message with an empty one to it, in any order. The service
// may send messages that are not acknowledged again, with the same number. The server answers there
// to a message without subscribers.
//
// The last message is empty. It has the reason for the end and the number of lines. Its status is
// 503, which ends a waiting NATS CLI, or 204 on request:
//
//	Flyte-Log-Stream     Vq2dG0
//	Flyte-Log-Seq        8
//	Flyte-Log-End        eof
//	Flyte-Log-Lines      1000
//	Status               503
//
// The reasons are eof, stopped, limit (a limit of the service, after an error),
// max_duration, stalled, error (after an error) and shutdown. An error is a message of its own,
// with the headers above, and the end follows.
//
// The service probes for a reader with messages that the server traces and does not deliver:
//
//	Nats-Trace-Only      true
//	Nats-Trace-Dest      flyte.apps.logs.ack.shop.Vq2dG0.trace
package subjects
