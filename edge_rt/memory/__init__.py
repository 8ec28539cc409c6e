"""Package + device + request -> plan: arithmetic only, nothing is loaded."""
