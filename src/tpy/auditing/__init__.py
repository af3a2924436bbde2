"""The audit log: a line for each call that changes something about the server (`--audit-log`). It says who made the call, from
where, and how it ended; never what requests or files contain.

log.py writes the lines, services.py notes the changes themselves, whoever asks for them. Nothing here is imported without the
flag.
"""

from tpy.auditing.log import AuditLog, audit_log
from tpy.auditing.services import audited_loading, audited_services

__all__ = ["AuditLog", "audit_log", "audited_loading", "audited_services"]
