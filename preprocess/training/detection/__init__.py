"""Pictures with boxes: read from COCO, Pascal VOC and YOLO files into one value, and loaded for PyTorch."""
