"""What is printed of the stack of a rank that stands still."""

from __future__ import annotations

import inspect
from collections import OrderedDict

import torch

from template.distributed.hang_report import own_part

LIBRARY = f'''  File "{torch.__file__}", line 3, in inner
    return function()
'''
OWN = f'''  File "{__file__}", line 7, in forward
    time.sleep(1000)
'''


def test_of_a_stack_the_frames_of_libraries_are_left_out() -> None:
    assert own_part(LIBRARY + OWN + LIBRARY) == OWN.rstrip("\n")


def test_the_heading_of_a_worker_s_dump_stays() -> None:
    heading = "data-loader worker, process 12:\nCurrent thread 0x1 (most recent call first):\n"
    frames = f'  File "{__file__}", line 7 in read\n  File "{inspect.getfile(OrderedDict)}", line 9 in fetch\n'
    assert own_part(heading + frames).splitlines() == [*heading.splitlines(), f'  File "{__file__}", line 7 in read']


def test_a_stack_of_libraries_alone_is_shown_whole() -> None:
    assert own_part(LIBRARY) == LIBRARY
