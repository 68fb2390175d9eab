#!/usr/bin/env bash
# Prints deploy/appbridge.yaml: what the chart renders from its defaults, for `kubectl apply`, with
# its namespace and without the labels of Helm. HELM is the command.
set -euo pipefail
cd "$(dirname "$0")"

cat <<'EOF'
# Generated from deploy/chart/appbridge by `make chart`. docs/install.md explains the values.
#
#   kubectl apply -f deploy/appbridge.yaml
apiVersion: v1
kind: Namespace
metadata:
  name: appbridge
  labels:
    pod-security.kubernetes.io/enforce: restricted
EOF
${HELM:?} template appbridge appbridge --namespace appbridge |
	sed -e '/^ *app\.kubernetes\.io\/managed-by: Helm$/d' -e '/^ *helm\.sh\/chart: /d' -e '/^# Source: /d'
