{{- define "penstock.labels" -}}
app.kubernetes.io/name: penstock
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .name }}
{{- end }}

{{- define "penstock.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
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
{{- if .root.Values.policies }}
  - {name: policies, mountPath: /etc/penstock, readOnly: true}
{{- end }}
{{- end }}

{{- define "penstock.pod" -}}
automountServiceAccountToken: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile: {type: RuntimeDefault}
volumes:
  - {name: data, emptyDir: {}}
  - {name: tmp, emptyDir: {}}
{{- if .Values.policies }}
  - {name: policies, configMap: {name: {{ .Values.policies | quote }}}}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
