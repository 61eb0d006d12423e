"""The runtime: one session that follows a plan or a level.

``plan_executor`` joins a plan to the session; ``repeating`` notes operators and runs them again in backward;
``compiled`` does the same under ``torch.compile``.
"""
