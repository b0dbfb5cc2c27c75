# shellcheck shell=bash
# Sourced by hack/cluster: its certificates and kubeconfigs. One authority of the cluster's own signs all of
# them, as in a cluster that kubeadm made; the controller-manager signs with it too.

# Nothing of the machine's openssl.cnf: its defaults would make every certificate an authority.
request() {
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -noenc -days 365 \
        -config <(printf '[req]\ndistinguished_name=dn\n[dn]\n') "$@" 2>/dev/null || die "openssl could not make: $*"
}

make_authority() {
    request -subj /CN=kubernetes -keyout "$1/pki/ca.key" -out "$1/pki/ca.crt" \
        -addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,digitalSignature,keyCertSign,cRLSign \
        -addext subjectKeyIdentifier=hash
    openssl ecparam -name prime256v1 -genkey -noout -out "$1/pki/service-accounts.key" 2>/dev/null
    openssl ec -in "$1/pki/service-accounts.key" -pubout -out "$1/pki/service-accounts.pub" 2>/dev/null
}

# certificate <dir> <file> <subject> <clientAuth|serverAuth> [subject alternative names]
certificate() {
    local pki=$1/pki more=()
    [[ -z ${5:-} ]] || more=(-addext "subjectAltName=$5")
    request -CA "$pki/ca.crt" -CAkey "$pki/ca.key" -subj "$3" -keyout "$pki/$2.key" -out "$pki/$2.crt" \
        -addext basicConstraints=critical,CA:FALSE -addext keyUsage=critical,digitalSignature \
        -addext "extendedKeyUsage=$4" -addext authorityKeyIdentifier=keyid "${more[@]}"
}

# subject <name> [group...]
subject() {
    local name=$1
    shift
    [[ $# -eq 0 ]] || printf '/O=%s' "$@"
    printf '/CN=%s' "$name"
}

# client <dir> <file> <user> [group...]: a certificate for that user, and <file>.kubeconfig with it inside.
client() {
    local dir=$1 file=$2
    certificate "$dir" "$file" "$(subject "${@:3}")" clientAuth
    kubeconfig "$dir" "$(printf '{"client-certificate-data":"%s","client-key-data":"%s"}' \
        "$(base64 -w0 "$dir/pki/$file.crt")" "$(base64 -w0 "$dir/pki/$file.key")")" >"$dir/$file.kubeconfig"
}

# kubeconfig <dir> <user as JSON>
kubeconfig() {
    cat <<TEXT
apiVersion: v1
kind: Config
current-context: test
clusters: [{"name":"test","cluster":{"server":"$(fact "$1/facts" server)","certificate-authority-data":"$(base64 -w0 "$1/pki/ca.crt")"}}]
users: [{"name":"test","user":$2}]
contexts: [{"name":"test","context":{"cluster":"test","user":"test"}}]
TEXT
}
