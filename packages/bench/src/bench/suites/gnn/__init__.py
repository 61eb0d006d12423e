"""``python -m bench gnn``: GNNs at full precision and with compressed activations, after GACT's benchmark (Liu et al.,
ICML 2022).

GACT's ``python test_gnn.py --model gcn --gact --level L1 --get-mem`` is here
``python -m bench gnn --dataset ogbn-arxiv --norm batch --model gcn --level L1 --part memory``, and so for each model
and level; without ``--part memory`` it trains, too, which gives accuracy and the time of an epoch.
"""
