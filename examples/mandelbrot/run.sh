#!/bin/bash
# Draw the part of the Mandelbrot set that view.json asks for.
set -euo pipefail
python3 mandelbrot.py view.json mandelbrot.png
