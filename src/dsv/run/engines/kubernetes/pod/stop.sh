# preStop hook of container `main`: Kubernetes is ending the pod.
own=/dsv/own
: >$own/stopped
read -r pid <$own/command && kill -TERM "$pid"
