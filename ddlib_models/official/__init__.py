"""The authors' checkpoints of MDLM, GIDD and HDLM as ``DiT``.

Each function takes a mapping of tensors, a file, a folder or a hub id, and gives a network whose states are in our
order: words, clusters, the mask last. A checkpoint that is not exactly what its function expects is refused.
"""

from ddlib_models.official.families import gidd, hdlm, mdlm

__all__ = ["gidd", "hdlm", "mdlm"]
