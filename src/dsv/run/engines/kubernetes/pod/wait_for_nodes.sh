# Part of run.sh: waits until the names of all nodes can be resolved, which they can once each node has its place. A node
# that has ended has no name any more, so this waits for at most a minute.
resolve() { # NODE
  ! command -v getent || { getent hosts "$1"; return; }
  while read -r key domains; do # the nslookup of busybox does not complete a name with a dot
    [ "$key" = search ] || continue
    for domain in $domains; do
      nslookup "$1.$domain" && return
    done
  done </etc/resolv.conf
  nslookup "$1"
}
wait_for_nodes() {
  PATH=$tools
  command -v getent || command -v nslookup || return
  last=$(($(date +%s) + 60))
  for node in $DSV_NODES; do
    until resolve "$node" || [ "$(date +%s)" -ge "$last" ]; do sleep 0.5 || sleep 1; done
  done
}
