{{- define "tidelog.name" -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "tidelog.selector" -}}
app.kubernetes.io/name: tidelog
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "tidelog.labels" -}}
{{ include "tidelog.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}

{{- define "tidelog.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "tidelog.name" .) -}}
{{- else -}}
{{- required "serviceAccount.name: name the account that exists" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "tidelog.secret" -}}
{{- if .Values.store.existingSecret -}}
{{- .Values.store.existingSecret -}}
{{- else if .Values.store.accessKeyId -}}
{{- include "tidelog.name" . -}}
{{- end -}}
{{- end -}}

{{- /* The command of a broker. Its id is the ordinal of its pod. Kubernetes reads $(NAME) in it as a
variable, and $$ as $. */ -}}
{{- define "tidelog.command" -}}
id=${POD_NAME##*-}
exec tidelog server --broker-id "$id" --listen 0.0.0.0:9092 --http 0.0.0.0:9093
{{- if .Values.external.enabled }} --advertise "{{ include "tidelog.host" . | replace "%d" "$id" }}:{{ include "tidelog.externalPort" . }}"
{{- else }} --advertise "$POD_NAME.{{ include "tidelog.name" . }}.$POD_NAMESPACE.svc:9092"
{{- end }} --log-format {{ .Values.logFormat }}
{{- range $name, $value := .Values.settings }}
{{- if not (kindIs "invalid" $value) }} --set {{ printf "%s=%s" $name (include "tidelog.setting" $value) | replace "'" "'\\''" | squote | replace "$" "$$" }}
{{- end }}
{{- end }}
{{- end -}}

{{- /* The name that clients reach a broker by. Without a port of its own it needs a name of its own. */ -}}
{{- define "tidelog.host" -}}
{{- $host := required "external.host: name the brokers' addresses, as broker-%d.example.com" .Values.external.host -}}
{{- if not (or (contains "%d" $host) (eq .Values.external.type "NodePort") (eq (int .Values.replicas) 1)) -}}
{{- fail "external.host: give each broker a name of its own, as broker-%d.example.com; %d is its number" -}}
{{- end -}}
{{- $host -}}
{{- end -}}

{{- /* The port that clients outside the cluster are told, for the shell. */ -}}
{{- define "tidelog.externalPort" -}}
{{- if eq .Values.external.type "NodePort" -}}
$(({{ include "tidelog.firstNodePort" . }} + id))
{{- else -}}
{{- .Values.external.port -}}
{{- end -}}
{{- end -}}

{{- define "tidelog.firstNodePort" -}}
{{- required "external.firstNodePort: choose a port for broker 0, as 30092; broker N gets it plus N" .Values.external.firstNodePort | int -}}
{{- end -}}

{{- /* The drain before SIGTERM. Then snapshots, giving partitions away and requests may take
shutdown.timeout.ms each, and the store 60 s. */ -}}
{{- define "tidelog.graceSeconds" -}}
{{- $timeout := index .Values.settings "shutdown.timeout.ms" | default 10000 | int64 -}}
{{- add .Values.drainSeconds 60 (div (add (mul 3 $timeout) 999) 1000) -}}
{{- end -}}

{{- /* A setting's value. Helm reads whole numbers of a file as floats: 1073741824 as 1.073741824e+09. */ -}}
{{- define "tidelog.setting" -}}
{{- if and (kindIs "float64" .) (eq (floor .) .) -}}
{{- int64 . -}}
{{- else -}}
{{- . -}}
{{- end -}}
{{- end -}}
