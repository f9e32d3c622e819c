"""Building an environment must not load what only grading processes need."""

import subprocess
import sys


def test_no_heavy_package_is_loaded_by_the_layer() -> None:
    code = (
        "import sys\n"
        "import posttrain.environment.build, posttrain.environment.mixture\n"
        "print([m for m in ('torch', 'sympy', 'reasoning_gym', 'math_verify', 'datasets') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
