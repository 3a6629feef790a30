"""Published checkpoints of MDLM, GIDD and HDLM as ``DiT``.

Each function takes a mapping of tensors, a file, a folder or a hub id, and returns a network whose
states are in the order of ddlib: tokens, clusters, the mask last. A checkpoint that differs from
the expected format is rejected.
"""

from ddlib_models.official.families import gidd, hdlm, mdlm

__all__ = ["gidd", "hdlm", "mdlm"]
