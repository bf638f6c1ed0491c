"""Operations: runs that tell somebody how they ended, and runs that begin by themselves."""
