"""Real servers, engines and hosts for the tests, put together from Debian's packages on this machine.

Each lab lives in a folder of its own, listens on loopback or in a network namespace of its own, writes down
the processes it started and stops just those. By hand: `python -m tests.labs up ceph-rgw DIR`.
"""
