"""Settings of containers, for tests that start some."""

ENGINE = ["--runtime=runc", "--cgroup-manager=cgroupfs"]
"""Options of every call of podman: those that work for root in a container, too."""
