"""Jobs in containers of this machine, by docker or podman."""
