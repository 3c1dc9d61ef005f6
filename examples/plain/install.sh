#!/usr/bin/env bash
# Installs slurm.yaml into the given namespace, with new keys and passwords. A second run changes nothing that exists.
set -euo pipefail
namespace=${1:?usage: install.sh NAMESPACE}
here=$(dirname "$(readlink -f "$0")")

kubectl create namespace "$namespace" --dry-run=client -o yaml | kubectl apply -f - >/dev/null

keys=$(mktemp -d)
trap 'rm -rf "$keys"' EXIT
has() { kubectl get secret "$1" --namespace "$namespace" >/dev/null 2>&1; }
random() { tr -dc a-zA-Z0-9 </dev/urandom | head -c 24 || true; }

if ! has slurm-keys; then
    head -c 1024 /dev/urandom >"$keys/slurm.key"
    head -c 32 /dev/urandom >"$keys/jwt.key"
    kubectl create secret generic slurm-keys --namespace "$namespace" \
        --from-file="$keys/slurm.key" --from-file="$keys/jwt.key"
fi
if ! has slurm-database; then
    password=$(random)
    cat >"$keys/slurmdbd.conf" <<CONF
DbdHost=slurmdbd-0
SlurmUser=slurm
AuthType=auth/slurm
AuthInfo=use_client_ids
AuthAltTypes=auth/jwt
AuthAltParameters=jwt_key=/etc/slurm/jwt.key
StorageType=accounting_storage/mysql
StorageHost=mariadb
StorageUser=slurm
StoragePass=$password
StorageLoc=slurm_acct_db
LogFile=/dev/null
CONF
    kubectl create secret generic slurm-database --namespace "$namespace" --from-literal="password=$password" \
        --from-literal="root-password=$(random)" --from-file="$keys/slurmdbd.conf"
fi
kubectl apply --namespace "$namespace" -f "$here/slurm.yaml"
