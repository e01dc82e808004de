"""The version of the flashpack package whose interface this is; penstock's own is `penstock.__version__`."""

__version__ = version = "0.4.5"
__version_tuple__ = version_tuple = (0, 4, 5)
__commit_id__ = commit_id = None
