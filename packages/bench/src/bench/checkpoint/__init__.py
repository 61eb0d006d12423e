"""``python -m bench checkpoint``: training with planned recomputation beside plain training, model by model.

architectures.py    the models: how each is built, on what inputs, and what was published of it
image_models.py     those of torchvision, and timm's Swin
text_models.py      those of transformers
cells.py            networks of cells: the operations, a cell, the network
nasnet.py, amoebanet.py, darts.py    the cells themselves
unet.py             a U-Net
"""
