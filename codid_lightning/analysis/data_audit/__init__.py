"""Audits of any data, and of anybody's predictions: no trained run is needed."""

from codid_lightning.analysis.data_audit.report import DataAudit, audit_samples
from codid_lightning.analysis.data_audit.samples import Samples

__all__ = ["DataAudit", "Samples", "audit_samples"]
