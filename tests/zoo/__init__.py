"""Named trees, processes, samplers, paces, controls and small networks that the tests share."""
