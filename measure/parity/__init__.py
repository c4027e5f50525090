"""How far what runs is from the reference, stage by stage, and where the difference comes from.

``bench`` measures *subjects* (``backends``, ``served``, ``library_baselines``, ``own_code``) on photos and makes a
``report``; ``table``, ``explain`` and ``heatmap`` show it; ``run`` is one run of ``onestream parity``. ``video`` has
what takes frames, ``cascade`` what takes regions, or photos through all stages.
"""
