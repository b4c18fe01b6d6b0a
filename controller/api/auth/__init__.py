"""Who may do what: authentication, roles and namespaces, rates, and the trail they leave.

Called by the server around every method of every service. Nothing here decides about replicas.
"""
