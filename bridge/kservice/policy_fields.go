package kservice

import (
	"strings"
	"sync"
)

// class is how far a field of a pod spec reaches.
type class string

const (
	// classUnknown is that of a field that is not in the table: it is denied, so that what a
	// later version of Kubernetes adds is denied until it is classified.
	classUnknown   class = ""
	classInside    class = "inside" // stays within the pod, or is checked field by field
	classAccount   class = "account"
	classSecret    class = kindSecret
	classConfigMap class = kindConfigMap
	classClaim     class = kindClaim
	classHost      class = "host" // reaches the node or its kernel. Values that do not are in harmless.
	// classOther names another object of the cluster or of the network, or governs the pods of
	// others.
	classOther class = "other"
)

// byClass is the table: the fields of each type of a pod spec, by their JSON names and by class.
// Fields of an embedded type count as the embedding type's own. Types below a field of classHost
// and classOther are missing, since they are denied as a whole.
//
// Which node a pod gets is inside as long as the scheduler decides it, but see nodeRolePrefix:
// apps choose nodes with GPUs by label and toleration.
var byClass = map[string]map[class]string{
	"PodSpec": {
		classInside: "volumes initContainers containers restartPolicy terminationGracePeriodSeconds activeDeadlineSeconds " +
			"dnsPolicy dnsConfig hostname subdomain setHostnameAsFQDN hostnameOverride hostAliases " +
			"nodeSelector affinity tolerations topologySpreadConstraints " +
			"automountServiceAccountToken enableServiceLinks securityContext imagePullSecrets readinessGates os resources",
		classAccount: "serviceAccountName serviceAccount",
		// Processes of one namespace see each other's files, also the certificates of the
		// queue-proxy.
		classHost:  "hostNetwork hostPID hostIPC hostUsers nodeName shareProcessNamespace runtimeClassName overhead",
		classOther: "ephemeralContainers schedulerName priorityClassName priority preemptionPolicy schedulingGates resourceClaims schedulingGroup",
	},
	"LocalObjectReference": {classSecret: "name"}, // of imagePullSecrets; all else embeds it or is denied

	"Volume": {
		classInside: "name emptyDir secret configMap persistentVolumeClaim downwardAPI projected image",
		classHost:   "hostPath gitRepo flexVolume csi",
		classOther:  "gcePersistentDisk awsElasticBlockStore nfs iscsi glusterfs rbd cinder cephfs flocker fc azureFile vsphereVolume quobyte azureDisk photonPersistentDisk portworxVolume scaleIO storageos ephemeral",
	},
	"EmptyDirVolumeSource":              {classInside: "medium sizeLimit"},
	"SecretVolumeSource":                {classSecret: "secretName", classInside: "items defaultMode optional"},
	"ConfigMapVolumeSource":             {classConfigMap: "name", classInside: "items defaultMode optional"},
	"PersistentVolumeClaimVolumeSource": {classClaim: "claimName", classInside: "readOnly"},
	"KeyToPath":                         {classInside: "key path mode"},
	"DownwardAPIVolumeSource":           {classInside: "items defaultMode"},
	"DownwardAPIVolumeFile":             {classInside: "path fieldRef resourceFieldRef mode"},
	"ObjectFieldSelector":               {classInside: "apiVersion fieldPath"},
	"ResourceFieldSelector":             {classInside: "containerName resource divisor"},
	"ProjectedVolumeSource":             {classInside: "sources defaultMode"},
	// A projected token is one of the pod's own service account.
	"VolumeProjection":              {classInside: "secret downwardAPI configMap serviceAccountToken", classOther: "clusterTrustBundle podCertificate"},
	"SecretProjection":              {classSecret: "name", classInside: "items optional"},
	"ConfigMapProjection":           {classConfigMap: "name", classInside: "items optional"},
	"DownwardAPIProjection":         {classInside: "items"},
	"ServiceAccountTokenProjection": {classInside: "audience expirationSeconds path"},
	"ImageVolumeSource":             {classInside: "reference pullPolicy"},

	"Container": {
		classInside: "name image command args workingDir ports envFrom env resources resizePolicy restartPolicy restartPolicyRules " +
			"volumeMounts volumeDevices livenessProbe readinessProbe startupProbe lifecycle terminationMessagePath terminationMessagePolicy " +
			"imagePullPolicy securityContext stdin stdinOnce tty",
	},
	"ContainerPort":                   {classInside: "name containerPort protocol", classHost: "hostPort hostIP"},
	"EnvFromSource":                   {classInside: "prefix configMapRef secretRef"},
	"ConfigMapEnvSource":              {classConfigMap: "name", classInside: "optional"},
	"SecretEnvSource":                 {classSecret: "name", classInside: "optional"},
	"EnvVar":                          {classInside: "name value valueFrom"},
	"EnvVarSource":                    {classInside: "fieldRef resourceFieldRef configMapKeyRef secretKeyRef fileKeyRef"},
	"ConfigMapKeySelector":            {classConfigMap: "name", classInside: "key optional"},
	"SecretKeySelector":               {classSecret: "name", classInside: "key optional"},
	"FileKeySelector":                 {classInside: "volumeName path key optional"},
	"ResourceRequirements":            {classInside: "limits requests", classOther: "claims"},
	"ContainerResizePolicy":           {classInside: "resourceName restartPolicy"},
	"ContainerRestartRule":            {classInside: "action exitCodes"},
	"ContainerRestartRuleOnExitCodes": {classInside: "operator values"},
	"VolumeMount":                     {classInside: "name readOnly recursiveReadOnly mountPath subPath subPathExpr", classHost: "mountPropagation"},
	"VolumeDevice":                    {classInside: "name devicePath"},
	"Probe":                           {classInside: "exec httpGet tcpSocket grpc initialDelaySeconds timeoutSeconds periodSeconds successThreshold failureThreshold terminationGracePeriodSeconds"},
	"Lifecycle":                       {classInside: "postStart preStop stopSignal"},
	"LifecycleHandler":                {classInside: "exec httpGet tcpSocket sleep"},
	"ExecAction":                      {classInside: "command"},
	"HTTPGetAction":                   {classInside: "path port scheme httpHeaders", classHost: "host"}, // the node makes the request
	"HTTPHeader":                      {classInside: "name value"},
	"TCPSocketAction":                 {classInside: "port", classHost: "host"},
	"GRPCAction":                      {classInside: "port service"},
	"SleepAction":                     {classInside: "seconds"},
	"Capabilities":                    {classInside: "drop", classHost: "add"},
	"SeccompProfile":                  {classHost: "type localhostProfile"},
	"AppArmorProfile":                 {classHost: "type localhostProfile"},
	"SecurityContext":                 {classInside: "capabilities runAsUser runAsGroup runAsNonRoot readOnlyRootFilesystem allowPrivilegeEscalation seccompProfile appArmorProfile", classHost: "privileged seLinuxOptions windowsOptions procMount"},
	"PodSecurityContext":              {classInside: "runAsUser runAsGroup runAsNonRoot supplementalGroups supplementalGroupsPolicy fsGroup fsGroupChangePolicy seccompProfile appArmorProfile", classHost: "seLinuxOptions windowsOptions sysctls seLinuxChangePolicy"},
	"Affinity":                        {classInside: "nodeAffinity podAffinity podAntiAffinity"},
	"NodeAffinity":                    {classInside: "requiredDuringSchedulingIgnoredDuringExecution preferredDuringSchedulingIgnoredDuringExecution"},
	"NodeSelector":                    {classInside: "nodeSelectorTerms"},
	"NodeSelectorTerm":                {classInside: "matchExpressions matchFields"},
	"NodeSelectorRequirement":         {classInside: "key operator values"},
	"PreferredSchedulingTerm":         {classInside: "weight preference"},
	"PodAffinity":                     {classInside: "requiredDuringSchedulingIgnoredDuringExecution preferredDuringSchedulingIgnoredDuringExecution"},
	"PodAffinityTerm":                 {classInside: "labelSelector namespaces topologyKey namespaceSelector matchLabelKeys mismatchLabelKeys"},
	"WeightedPodAffinityTerm":         {classInside: "weight podAffinityTerm"},
	// A required term keeps the pods of others off the node, too.
	"PodAntiAffinity":          {classInside: "preferredDuringSchedulingIgnoredDuringExecution", classOther: "requiredDuringSchedulingIgnoredDuringExecution"},
	"Toleration":               {classInside: "key operator value effect tolerationSeconds"},
	"TopologySpreadConstraint": {classInside: "maxSkew topologyKey whenUnsatisfiable labelSelector minDomains nodeAffinityPolicy nodeTaintsPolicy matchLabelKeys"},
	"HostAlias":                {classInside: "ip hostnames"}, // lines in the pod's own hosts file
	"PodDNSConfig":             {classInside: "nameservers searches options"},
	"PodDNSConfigOption":       {classInside: "name value"},
	"PodReadinessGate":         {classInside: "conditionType"},
	"PodOS":                    {classInside: "name"},
}

// harmless are the values of fields of classHost that reach nothing. Those of capabilities are
// of the baseline Pod Security Standard of Kubernetes.
var harmless = map[string]string{
	"PodSpec.hostNetwork":           "false",
	"PodSpec.hostPID":               "false",
	"PodSpec.hostIPC":               "false",
	"PodSpec.hostUsers":             "false",
	"PodSpec.shareProcessNamespace": "false",
	"SecurityContext.privileged":    "false",
	"SecurityContext.procMount":     "Default",
	"SeccompProfile.type":           "RuntimeDefault",
	"AppArmorProfile.type":          "RuntimeDefault",
	"VolumeMount.mountPropagation":  "None",
	"Capabilities.add": "AUDIT_WRITE CHOWN DAC_OVERRIDE FOWNER FSETID KILL MKNOD NET_BIND_SERVICE " +
		"SETFCAP SETGID SETPCAP SETUID SYS_CHROOT",
}

// classes is the table by type and field.
var classes = sync.OnceValue(func() map[string]class {
	out := map[string]class{}
	for owner, fields := range byClass {
		for class, names := range fields {
			for name := range strings.FieldsSeq(names) {
				out[owner+"."+name] = class
			}
		}
	}
	return out
})

// nodeRolePrefix begins the taints that keep pods off nodes of the control plane.
const nodeRolePrefix = "node-role.kubernetes.io/"
