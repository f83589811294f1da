"""Folders for other programs: ONNX graphs, in 8 bits too, each compared before it is given away."""
