"""``onestream rollout``: another version in the place of the served one."""
