"""Model repositories in the cloud: S3 and what speaks its protocol, Google Cloud Storage, Azure Blob Storage, OSS.

A model is served from a local copy (`copies`). Its objects are listed, what the copy lacks of them is downloaded
(`core/objects.py`, `download`), and from then on it is a model directory as on a disk. `bucket` speaks to the providers, with
the credentials that `credentials` finds; `errors` says what went wrong in words that name a remedy; `source` puts it together.

Only the options are imported with the package: few servers have a repository in the cloud.
"""

from tpy_control.sources.cloud.environment import CloudEnvironment
from tpy_control.sources.cloud.options import CloudOptions

__all__ = ["CloudEnvironment", "CloudOptions"]
