"""Jobs on Kubernetes: the manifest, the scripts in the pods, and the end of a job."""
