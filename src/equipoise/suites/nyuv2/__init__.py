"""NYU-v2 at 288 x 384: thirteen classes, depth and normals, the network and protocol of the published tables."""
