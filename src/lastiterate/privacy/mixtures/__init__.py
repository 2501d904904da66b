"""Signal plus noise against noise alone, S + N against N: laws of S, numerical evaluation, root-finding."""
