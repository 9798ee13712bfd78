"""What administrators are handed: packages, units, playbooks; tried on hosts made of namespaces."""
