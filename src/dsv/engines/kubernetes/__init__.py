"""Jobs on Kubernetes: what the cluster is given, what runs there, and how it ends."""
