"""A tiny federation for tests: 4 classes, 8 features, 12 clients of 5 to 40 samples, every other one noisy."""

import numpy as np, torch
from torch import nn
from fnlkit.client import Client
from fnlkit.network import Network, Model
from fnlkit.inputs import Inputs
from fnlkit.training import Fit
from fnlkit.engines import make
from fnlkit import catalogue
def toy(seed=0,N=12,dtype=torch.float64,engine="sequential",bn=False,**kw):
    C,D=4,8
    r=np.random.default_rng(seed); mu=r.normal(size=(C,D))*1.4
    inputs=Inputs(False,dtype=dtype); cs=[]
    for i in range(N):
        n=int(r.integers(5,40)); y=r.integers(0,C,n); x=mu[y]+r.normal(size=(n,D))
        z=np.where(r.random(n)<(0 if i%2 else .6), r.integers(0,C,n), y)
        cs.append(Client(i, torch.from_numpy(x).to(dtype), torch.from_numpy(z), torch.from_numpy(z).clone(), C, inputs))
    torch.manual_seed(0)
    m=nn.Sequential(nn.Linear(D,32),*([nn.BatchNorm1d(32)] if bn else []),nn.ReLU(),nn.Linear(32,C))
    net=Network(m,dtype=dtype)
    return make(engine,cs,net,inputs,**kw),net
