"""Packages, units and playbooks, which administrators use; tried on hosts made of namespaces."""
