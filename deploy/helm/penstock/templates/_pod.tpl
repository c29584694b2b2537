{{- define "penstock.labels" -}}
app.kubernetes.io/name: penstock
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .name }}
{{- end }}

{{- define "penstock.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* A program's own options, see docs/reference/daemon.md and docs/reference/gateway.md. */}}
{{- define "penstock.config" -}}
{{- with .program.config }}
{{- if and (hasKey . "relays") (not .relays) }}
{{- fail (printf "programs.%s.config.relays is empty: name each subscription and its sink" $.name) }}
{{- end }}
{{- toYaml . }}
{{- end }}
{{- end }}

{{/* What every container has: the secret, no rights, a root that nobody writes to. */}}
{{- define "penstock.container" -}}
image: {{ include "penstock.image" .root | quote }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
envFrom:
  - secretRef: {name: {{ .root.Values.existingSecret | quote }}}
{{- if .root.Values.policies }}
env:
  - {name: PENSTOCK_POLICIES, value: /etc/penstock/policies.yaml}
{{- end }}
securityContext:
  readOnlyRootFilesystem: true
  allowPrivilegeEscalation: false
  capabilities: {drop: [ALL]}
volumeMounts:
  - {name: data, mountPath: /var/lib/penstock}
  - {name: tmp, mountPath: /tmp}
{{- with .program }}{{ if .config }}
  - {name: config, mountPath: /etc/penstock-program, readOnly: true}
{{- end }}{{ end }}
{{- if .root.Values.policies }}
  - {name: policies, mountPath: /etc/penstock, readOnly: true}
{{- end }}
{{- end }}

{{- define "penstock.pod" -}}
automountServiceAccountToken: false
# A service penstock-gateway would set PENSTOCK_GATEWAY_PORT, which is an option of the gateway.
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile: {type: RuntimeDefault}
volumes:
  - {name: data, emptyDir: {}}
  - {name: tmp, emptyDir: {}}
{{- with .program }}{{ if .config }}
  - {name: config, configMap: {name: {{ printf "%s-%s" $.root.Release.Name $.name | quote }}}}
{{- end }}{{ end }}
{{- if .root.Values.policies }}
  - {name: policies, configMap: {name: {{ .root.Values.policies | quote }}}}
{{- end }}
{{- with .root.Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
