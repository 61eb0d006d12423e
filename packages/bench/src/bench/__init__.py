"""bench: what compressed activations save and cost, measured.

python -m bench gnn           train GNNs at full precision and compressed; accuracy, memory, time
python -m bench kernels       time every codec and operator beside copies, plain PyTorch and other libraries
python -m bench sensitivity   compare adaptive levels' sensitivities with GACT's estimate
python -m bench activations   measure models of any kind: bytes, the gradient's error, time
python -m bench vision        image models: bytes, peaks, accuracy, the gradient's variance, time
python -m bench fewbit        few-bit activations and randomized linear layers
python -m bench checkpoint    planned recomputation: planned and measured peaks, time, gradients
python -m bench systems       every way to train with less memory: peaks against time
python -m bench search        the largest batch, depth, width or resolution that trains within a given memory
python -m bench text          BERT on GLUE's tasks: accuracy, memory and time of every way
python -m bench llm           language models: the loss of large vocabularies, whole and in chunks
python -m bench curves        training curves of four tasks: loss, accuracy and peak, plainly and compressed
python -m bench show FILE     print results that were recorded before, and draw a chart
python -m bench report        render recorded results as the Markdown pages that docs link to
"""
