"""Model repositories in the cloud: S3 and what speaks its protocol, Google Cloud Storage, Azure Blob Storage, OSS.

A model is served from a local copy (`copies`). Its objects are listed, what the copy lacks of them is downloaded
(`core/objects.py`, `download`), and from then on it is a model directory as on a disk. `bucket` speaks to the providers, with
the credentials that `credentials` finds; `errors` says what went wrong in words that name a remedy; `source` puts it together.

`kind` is what the group of entry points `tpy.sources` leads to, with the addresses. Nothing else is imported before a source is
opened: few servers have a repository in the cloud.
"""
