"""Ways to train a model, by name.

general.py      for any model: plain, levels, plans, checkpoints, compilers; ``Way`` is what each way is
decoders.py     for language models, with the loss in chunks; ``label`` marks ways that are not this project's
text.py         for BERT: levels, few-bit GELU, randomized linear layers, in any combination
conversions.py  for image models: what is put into a model in place, by hooks or by Q-layers
checkpoints.py  for plans of recomputation, beside blocks and compilers
roberta.py      for FewBit's table: RoBERTa-base with few-bit GELU and randomized linear layers
"""
