"""Files and pipes between commands: npz, pt and zip readers, federation and run."""
