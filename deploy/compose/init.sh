#!/bin/sh
# Prepares docker-compose.yaml: writes random passwords into deploy/compose/secrets, and .env
# beside docker-compose.yaml. Files that exist are kept, so it can run again: after a change of
# accounts.conf remove nats.env first, then restart NATS and appbridge.
#
#   deploy/compose/init.sh [kubeconfig]     default: $KUBECONFIG, else ~/.kube/config
set -eu
umask 077

kubeconfig=${1:-${KUBECONFIG:-$HOME/.kube/config}}
if [ ! -f "$kubeconfig" ] || [ ! -r "$kubeconfig" ]; then
	echo "init.sh: kubeconfig $kubeconfig: no such file, or it is not readable" >&2
	exit 1
fi
kubeconfig=$(cd "$(dirname "$kubeconfig")" && pwd)/$(basename "$kubeconfig")
loopback='^[[:space:]]*server:[[:space:]]*"?https?://(127\.|localhost|\[::1\])'
if grep -Eq "$loopback" "$kubeconfig"; then
	echo "init.sh: warning: kubeconfig $kubeconfig has a server on the loopback interface of this" \
		"machine, which containers do not reach" >&2
fi
cd "$(dirname "$0")/../.."

# The first character is a letter: nats-server may read a value that starts with a digit as a
# number.
password() {
	printf 'p%s' "$(od -An -N20 -tx1 /dev/urandom | tr -d ' \n')"
}

# The user bridge has its password in a file of its own.
secrets=deploy/compose/secrets
if [ -e $secrets/nats.env ]; then
	echo "init.sh: $secrets/nats.env exists and is kept"
else
	mkdir -p $secrets
	variables=$(grep -o '\$NATS_[A-Z_]*_PASSWORD' deploy/nats/accounts.conf | tr -d '$' | sort -u)
	for name in $variables; do
		echo "$name=$(password)"
	done >$secrets/nats.env.new
	sed -n 's/^NATS_BRIDGE_PASSWORD=//p' $secrets/nats.env.new >$secrets/bridge-password
	mv $secrets/nats.env.new $secrets/nats.env
	echo "init.sh: wrote $secrets/nats.env"
fi

if [ -e .env ]; then
	echo "init.sh: .env exists and is kept"
else
	cat >.env <<END
COMPOSE_PROFILES=single
KUBECONFIG_FILE=$kubeconfig
BRIDGE_USER=$(id -u):$(id -g)
ROUTE_PASSWORD=$(password)
GRAFANA_PASSWORD=$(password)
END
	echo "init.sh: wrote .env"
fi
