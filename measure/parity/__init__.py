"""How far what runs is from the reference, stage by stage, and where the difference comes from.

``bench`` measures *subjects* (``backends``, ``served``, ``others``, ``own_code``) on photos and makes a ``report``;
``table``, ``explain`` and ``heatmap`` show it; ``command`` is ``onestream parity``.
"""
