#!/bin/sh
# Make the keys of a federation: TLS for the SuperLink, and one key per SuperNode.
#
#     sh certificates.sh FOLDER superlink.example.org,127.0.0.1 north south
#
# writes into FOLDER, once:
#
#     ca.crt                      for every machine: by it they know the SuperLink
#     ca.key                      for nobody but you: keep it off all machines, it makes new ones
#     server.pem, server.key      for the SuperLink, of these names and addresses
#     nodes/NAME, nodes/NAME.pub  for one SuperNode each, and for `flwr supernode register`
#
# Keys that are there are left as they are, so that a node can be added later. The keys by which
# nodes know one another in secure aggregation are others: each owner makes one (`privsyn node key
# --init`), and its secret half never leaves the node. It needs OpenSSL 3 and OpenSSH.
set -eu
umask 077
folder=$1 hosts=$2
shift 2
mkdir -p "$folder/nodes"
certificate() {  # with the extensions that are read from standard input
    openssl req -x509 -config /dev/stdin -newkey ec -pkeyopt ec_paramgen_curve:P-384 -nodes -days 825 "$@"
}

if [ ! -e "$folder/server.pem" ]; then
    names=$(echo "$hosts" | tr , '\n' | sed 's/^[0-9.]*$/IP:&/; t; s/^/DNS:/' | paste -s -d , -)
    certificate -subj "/CN=flower-privsyn federation" -keyout "$folder/ca.key" -out "$folder/ca.crt" <<'EOF'
[req]
distinguished_name = none
x509_extensions = authority
[none]
[authority]
basicConstraints = critical, CA:TRUE, pathlen:0
subjectKeyIdentifier = hash
EOF
    certificate -CA "$folder/ca.crt" -CAkey "$folder/ca.key" -subj "/CN=${hosts%%,*}" \
        -keyout "$folder/server.key" -out "$folder/server.pem" <<EOF
[req]
distinguished_name = none
x509_extensions = server
[none]
[server]
basicConstraints = critical, CA:FALSE
subjectAltName = $names
EOF
    chmod 644 "$folder/ca.crt" "$folder/server.pem"
fi
for name; do
    [ -e "$folder/nodes/$name" ] || ssh-keygen -q -t ecdsa -b 384 -N "" -C "$name" -f "$folder/nodes/$name"
done
