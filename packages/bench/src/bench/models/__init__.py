"""Models and data that the benchmarks share, with random weights unless a name says otherwise.

subject.py          a model with a batch for it, and the libraries that only some models need
networks.py         small networks of other libraries, for measurements on any model
transformers.py     transformers of any size; decoders.py, glue_networks.py, masked_bert.py: more of them
sized.py            models whose size is searched, and graph networks in layers that can be checkpointed
image_models.py     torchvision's and timm's; resnet20.py, unet.py, dense.py: detection, segmentation, MoCo
cells.py            networks of cells, found by search
architectures.py    the models of Optimal Gradient Checkpointing's table
graph_networks.py   GCN, GraphSAGE, GAT and GCNII
data/               graphs, images and sentences
"""
