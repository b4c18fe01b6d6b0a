"""Workloads and traffic events declared as Kubernetes objects: `sync.Synchroniser` carries them into the API, one way."""
